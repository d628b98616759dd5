# Runs a command of a user in a root, from which this machine's files cannot be reached: what packages do when they are
# installed (certificates, devices, daemons, kernel settings) stays in there. Wants namespaces of its own:
#   unshare --mount --pid --ipc --uts --fork --kill-child --propagation private sh tools/enter-root.sh ROOT USER COMMAND [FOLDER...]
# FOLDERs of this machine are there, to be read.
set -eu
root=$1 user=$2 command=$3
shift 3
mount --bind "$root" "$root"
cd "$root"
for folder in "$@"; do
  mkdir -p ".$folder"
  mount --bind "$folder" ".$folder"
  mount -o remount,bind,ro ".$folder"
done
mount -t proc proc proc
for part in sys sysrq-trigger; do # they are the kernel's, which there is one of
  [ -e "proc/$part" ] || continue
  mount --bind "proc/$part" "proc/$part"
  mount -o remount,bind,ro "proc/$part"
done
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
while read -r name major minor; do mknod -m 666 "dev/$name" c "$major" "$minor"; done <<END
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
END
pivot_root . .
umount -l .
home=/root
[ "$user" = root ] || home=/home/$user
# Even root makes no devices in there, and sets neither clock nor kernel.
exec setpriv --bounding-set=-mknod,-sys_boot,-sys_module,-sys_rawio,-sys_time chroot --userspec="$user" / \
  /usr/bin/env -i HOME="$home" LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  sh -c "cd ~/ringcore && $command"
