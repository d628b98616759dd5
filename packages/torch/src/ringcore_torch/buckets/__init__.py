"""Which gradients are averaged by one operation, and how.

`dealing` deals parameters to buckets, `bucket` is what one is, and `flat` and `packed` are the two kinds: gradients in
a row of registered memory, and small ones that stay where autograd has put them.
"""

from ringcore_torch.buckets.bucket import Bucket
from ringcore_torch.buckets.dealing import SOONER_BUCKET_BYTES, Groups, deal, make_buckets, usual_bucket_bytes
from ringcore_torch.buckets.packed import PackedBucket

__all__ = ["SOONER_BUCKET_BYTES", "Bucket", "Groups", "PackedBucket", "deal", "make_buckets", "usual_bucket_bytes"]
