"""measuring - running programs and links, and naming the machine: shared by everything that measures."""
