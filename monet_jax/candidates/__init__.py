"""Plans of one program: proposed by models of the compiler, compiled once each, and counted."""
