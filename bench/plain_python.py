"Lets the package run on a python that has torch but not jaxtyping, whose shapes are only written down, never checked."
import importlib.util
import sys
import types


class _Shape:
    "Stands for any annotated tensor."
    def __class_getitem__(cls, item): return object


if importlib.util.find_spec('jaxtyping') is None:
    module = types.ModuleType('jaxtyping')
    for _name in ('Bool', 'Float', 'Int', 'Real', 'Shaped', 'UInt8'): setattr(module, _name, _Shape)
    sys.modules['jaxtyping'] = module
