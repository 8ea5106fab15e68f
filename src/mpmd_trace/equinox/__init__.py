"""Equinox: naming the layers of a model, jit of functions of modules, placing, creating and saving them."""

from ._filter import filter_jit as filter_jit
from ._layers import NamedLayer as NamedLayer
from ._layers import Statics as Statics
from ._layers import join as join
from ._layers import name_layers as name_layers
from ._layers import split as split
from ._placing import abstract as abstract
from ._placing import create as create
from ._placing import place as place
from ._saving import restore as restore
from ._saving import save as save
