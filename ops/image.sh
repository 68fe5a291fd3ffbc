#!/bin/sh
# A step of ops/Containerfile: `image.sh ROLE PART…` makes /image, all files of an image in which pharoah-PART are installed
# and the role's program is `pharoah`: Python, what it and they load, and no other program.
set -eu
role=$1
shift
python=$(readlink -f "$(command -v python3)")
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
"$python" -m venv --without-pip /opt/pharoah
/opt/build/bin/pip --python /opt/pharoah/bin/python install --quiet --no-cache-dir --only-binary :all: \
    --constraint /opt/constraints.txt --find-links /opt/wheels $(printf 'pharoah-%s ' "$@")
find /opt/pharoah/bin ! -name 'python*' ! -name "pharoah-$role" -type f -delete

cd /
mkdir -p -m 0755 image/dev image/etc image/proc image/usr/local/bin image/var/lib/dpkg/status.d
mkdir -m 1777 image/tmp
echo 'pharoah:x:1000:1000::/var/lib/pharoah:/nonexistent' > image/etc/passwd
echo 'pharoah:x:1000:' > image/etc/group
echo 'hosts: files dns' > image/etc/nsswitch.conf
ln -s "/opt/pharoah/bin/pharoah-$role" image/usr/local/bin/pharoah
cp --archive --parents "$python" "$library" /opt/pharoah /etc/ld.so.conf /etc/ld.so.conf.d image
(cd "image$library" && rm -rf config-* ctypes/macholib ensurepip idlelib lib2to3 site-packages test tkinter turtledemo)
# A trustee calls nobody by a public name.
[ "$role" = trustee ] || cp --dereference --parents /etc/ssl/certs/ca-certificates.crt image
find "$library" /opt/pharoah -name '*.so*' -exec ldd "$python" {} + 2>/dev/null \
    | grep --only-matching '[[:space:]]/[^ ]*' | grep --invert-match /opt/pharoah/ \
    | sort --unique | xargs cp --dereference --parents --target-directory image
ldconfig -r /image

# Debian's packages of these files, as scanners read them in an image without dpkg; with their licences.
(cd image && find etc lib* usr -type f) | sed 's,^\(usr/\)\?\(.*\),/\2\n/usr/\2,' | xargs dpkg --search 2>/dev/null \
    | sed 's/:.*//' | sort --unique | while read -r package; do
        dpkg --status "$package" > "image/var/lib/dpkg/status.d/$package"
        cp --parents "/usr/share/doc/$package/copyright" image
    done
