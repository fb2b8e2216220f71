"""A host with its volumes, links and directories, and places on it for state."""

from dataclasses import replace

from contracts.spec.installation import Disks, StorageMap

# proc(5): id, parent, device, root, mount point, options, optional fields, -, type, source, super options
ROOT = "28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw"
DATA = "40 28 259:5 / /mnt/data rw,relatime shared:30 - xfs /dev/nvme1n1 rw,attr2,inode64"
SCRATCH = "41 28 259:7 / /mnt/scratch rw,noatime shared:31 - xfs /dev/nvme2n1 rw"
REST = """\
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
25 24 0:23 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,size=1031G
24 28 0:6 / /dev rw,nosuid shared:2 - devtmpfs udev rw
42 28 259:8 / /mnt/database rw,relatime - ext4 /dev/nvme3n1 rw
43 28 259:2 /srv/bulk /mnt/bulk rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
44 28 0:51 / /mnt/my\\040disk rw,relatime - nfs4 filer:/exports/my\\040disk rw,vers=4.2
45 40 259:8 /old /mnt/data/old rw,relatime - ext4 /dev/nvme3n1 rw
46 28 259:5 /data /srv/parquet rw,relatime shared:30 - xfs /dev/nvme1n1 rw,attr2,inode64
47 28 259:9 / /mnt/frozen ro,relatime - xfs /dev/nvme4n1 ro
"""
DIRECTORIES = frozenset(
    {
        "/root", "/root/checkpoints", "/root/data", "/var/data", "/tmp", "/mnt/data", "/mnt/data/checkpoints",
        "/mnt/data/checkpoints/cache", "/mnt/data/receipts", "/mnt/data/scratch", "/mnt/data/scratch/receipts",
        "/mnt/data/data", "/mnt/data/data/parquet", "/mnt/data/old/data", "/mnt/data/nanochat", "/mnt/scratch",
        "/mnt/scratch/receipts", "/mnt/database/data", "/mnt/bulk/checkpoints", "/mnt/my disk/checkpoints", "/dev/shm",
        "/srv/parquet", "/mnt/frozen/checkpoints", "/mnt/frozen/data", "/mnt/data/checkpoints/data",
    }
)  # fmt: skip
LINKS = {
    "/home/op/data": "/mnt/data/data",
    "/home/op/nanochat": "/mnt/data/nanochat",
    "/home/op/first": "second", "/home/op/second": "../op/data",
    "/home/op/gone": "/mnt/data/removed",
    "/home/op/round": "/mnt/data/about", "/mnt/data/about": "/home/op/round",
    "/mnt/data/home": "/var/data",
    "/mnt/data/caches": "checkpoints",
    "/mnt/scratch/run-7": "/root/.cache",
}  # fmt: skip
HOST = Disks(mountinfo=f"{ROOT}\n{DATA}\n{SCRATCH}\n{REST}", links=LINKS, directories=DIRECTORIES)
UNMOUNTED = replace(HOST, mountinfo=HOST.mountinfo.replace(f"{DATA}\n", "").replace("45 40", "45 28"))
WELL = StorageMap(
    durable="/mnt/data/checkpoints", scratch="/mnt/scratch", receipts="/mnt/data/receipts", data="/mnt/data/data",
    data_volume="/mnt/data",
)  # fmt: skip
