"""Documents -> rows of one length."""
