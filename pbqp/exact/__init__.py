"""Methods that prove their answer: elimination, the integer program, brute force."""
