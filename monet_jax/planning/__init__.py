"""From a traced function and a user's options to the record of a plan."""
