"""`RayExecutor` by ringcore-ray: `pip install 'ringcore-horovod[ray]'`."""

from horovod.ray.runner import RayExecutor

__all__ = ["RayExecutor"]
