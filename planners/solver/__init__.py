"""HiGHS in a child process, with deadlines."""
