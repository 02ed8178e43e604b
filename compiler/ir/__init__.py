"""The intermediate representation: specs, graphs of ops, plans, and what each op means in numpy."""
