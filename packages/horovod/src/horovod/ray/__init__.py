"""`RayExecutor` by ringcore-ray: `pip install 'ringcore-horovod[ray]'`."""

from ringcore.adapter import import_framework as _import_framework

_import_framework("ringcore_ray", "horovod.ray", {"ringcore_ray": "'ringcore-horovod[ray]'"})

from horovod.ray.runner import RayExecutor

__all__ = ["RayExecutor"]
