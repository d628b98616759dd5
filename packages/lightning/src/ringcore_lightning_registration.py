"""Registers the strategies "ring" when Lightning's are imported, without an import in anybody's script.

A `.pth` file loads this at every start of the interpreter (twice in a virtual environment), so that it does next to
nothing: it puts a finder in front of `sys.meta_path` that watches for Lightning's modules. Set
RINGCORE_LIGHTNING_REGISTER=0 to switch it off; `import ringcore_lightning` registers as well.
"""

import os
import sys

# Where Lightning's registries are.
REGISTRIES = (
    "lightning.pytorch.strategies",
    "lightning.fabric.strategies",
    "pytorch_lightning.strategies",
    "lightning_fabric.strategies",
)


class _Loader:
    """A module's own loader, and a call when it is done."""

    def __init__(self, loader):  # type: ignore[no-untyped-def]
        self._loader = loader

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return getattr(self._loader, name)

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        self._loader.exec_module(module)
        module.__spec__.loader = module.__loader__ = self._loader
        try:
            from ringcore_lightning.registration import register_in

            register_in(module)
        except Exception as error:  # Lightning must work without us
            import warnings

            warnings.warn(f"ringcore-lightning could not register its strategies: {error!r}", stacklevel=2)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in REGISTRIES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is _Finder else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)  # type: ignore[no-untyped-call, assignment]
                return spec
        return None


def install():  # type: ignore[no-untyped-def]
    """Watch for Lightning's modules from now on."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


if os.environ.get("RINGCORE_LIGHTNING_REGISTER", "1") != "0":
    install()  # type: ignore[no-untyped-call]
