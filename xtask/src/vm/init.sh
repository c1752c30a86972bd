#!/bin/busybox sh
# The guest's first process. ttyS0: the kernel's console, ttyS1: the tests' output, ttyS2: their status, ttyS3: files left
# in /out, each after a line with its name and size.
/bin/busybox --install -s 2>/dev/null
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
# Not over /tmp: the tree that is tested may lie there. The root file system is memory already.
mkdir -p /dev/shm /tmp /run
for folder in /dev/shm /run; do mount -t tmpfs tmp $folder; done
mount -t cgroup2 cgroup /sys/fs/cgroup
# As systemd does; hosts without these mounts are tested where they are built.
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
# One of version 1, too, as hybrid hosts have: a controller is in one of both.
mkdir /run/pids
mount -t cgroup -o pids pids /run/pids
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo +$controller >/sys/fs/cgroup/cgroup.subtree_control
done
ip link set lo up
hostname guest
for number in 1 2 3; do stty -F /dev/ttyS$number raw -echo; done
/bin/sh /command </dev/null >/dev/ttyS1 2>&1
echo $? >/dev/ttyS2
cd /out
for file in *; do
    [ -f "$file" ] && { echo "$file $(stat -c %s "$file")"; cat "$file"; } >/dev/ttyS3
done
sync
poweroff -f
