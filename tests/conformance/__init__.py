"""What every adapter does alike, over every transport: written once, in numpy."""
