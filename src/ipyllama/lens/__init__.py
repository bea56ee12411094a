"""What goes on inside: the distribution of the next token, and what sampling makes of it."""

from ipyllama.lens.lab import SamplingLab as SamplingLab
from ipyllama.lens.next_token import NextToken as NextToken
from ipyllama.lens.next_token import Stage as Stage
