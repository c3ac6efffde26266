#!/bin/sh
# scripts/emulated.sh COMMAND ...: runs a command under the emulated GPU of tests/emulated-gpu, which is built first where it
# is not built yet. Without a command it prints the folder where it lies. The command runs in the caller's folder.
#   CXX                           the compiler of the emulation and of its kernels (g++, else clang++)
#   CHRONAXIE_EMULATED_SEED       the order in which threads run (1; 0: in their own order)
#   CHRONAXIE_EMULATED_STREAMS    late (when somebody waits) or early (at once)
#   CHRONAXIE_EMULATED_SMS        multiprocessors (132)
#   CHRONAXIE_EMULATED_ARCH       75, 80, 89 or 90 (90)
#   CHRONAXIE_EMULATED_DEVICES    devices (2)
#   CHRONAXIE_EMULATED_MEMORY_MIB memory of all devices together (8192)
#   CHRONAXIE_EMULATED_LOST       DEVICE:KERNEL:N: with the N-th launch of a kernel a device fails for good; DEVICE:KERNEL:N:silent: it
#                                 says nothing any more, and who waits for it waits for ever
#   CHRONAXIE_EMULATED_CUFILE     what the emulated libcufile refuses, as the head of tests/emulated-gpu/cufile.cpp says; it is used where
#                                 CHRONAXIE_CUFILE names it (the folder cufile beside that of CHRONAXIE_NVRTC), which is 0 here otherwise
#   CHRONAXIE_EMULATED_CUSOLVER   N: the emulated libcusolver, which is used unless CHRONAXIE_CUSOLVER names another, fails for the N-th
#                                 matrix of each call
#   CHRONAXIE_EMULATED_KERNELS    a file to which the names of kernels that ran are added
#   CHRONAXIE_EMULATED_KEEP       if set, what the compiler saw of each kernel is kept, and where is said
set -eu
root="$(cd "$(dirname "$0")/.." && pwd)"
caller="$(pwd)"
cd "$root"
. scripts/common.sh

cxx="${CXX:-}"
for c in g++ clang++; do
    [ -n "$cxx" ] || ! command -v $c >/dev/null || cxx=$c
done
[ -n "$cxx" ] || { echo "emulated: neither g++ nor clang++ is installed (on Debian: apt-get install g++)" >&2; exit 1; }

# Another source, another folder: its cache of kernels too.
from=tests/emulated-gpu
hash="$( (cat $from/*.cpp $from/*.h $from/device/*.h scripts/emulated.sh; $cxx --version) | sha256sum | cut -c 1-16)"
case "$target_dir" in /*) ;; *) target_dir="$root/$target_dir" ;; esac
to="$target_dir/emulated/$hash"
if [ ! -e "$to/.complete" ]; then
    mkdir -p "$target_dir/emulated"
    exec 8>"$target_dir/emulated/lock"
    flock 8
    if [ ! -e "$to/.complete" ]; then
        rm -rf "$to"
        mkdir -p "$to/lib" "$to/nvrtc" "$to/cufile" "$to/cusolver" "$to/device" "$to/o"
        cp $from/abi.h "$to"
        cp $from/device/*.h "$to/device"
        flags="-std=c++17 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror"
        for part in fiber machine waits copies memory driver work modules translate nvrtc ptx_names cufile cusolver; do
            # shellcheck disable=SC2086
            $cxx $flags -c $from/$part.cpp -o "$to/o/$part.o"
        done
        (
            cd "$to/o"
            $cxx -shared -Wl,-soname,libcuda.so.1 fiber.o machine.o waits.o copies.o memory.o driver.o work.o modules.o -o ../lib/libcuda.so.1 -ldl -lpthread
            $cxx -shared translate.o nvrtc.o -o ../nvrtc/libnvrtc.so.13.0 -ldl
            $cxx translate.o ptx_names.o -o ../emulated-ptx
            $cxx -shared -Wl,-soname,libcufile.so.0 cufile.o ../lib/libcuda.so.1 -o ../cufile/libcufile.so.0
            $cxx -shared -Wl,-soname,libcusolver.so.12 cusolver.o ../lib/libcuda.so.1 -o ../cusolver/libcusolver.so.12
        )
        # Those of other sources that nobody used for a day.
        find "$target_dir/emulated" -mindepth 1 -maxdepth 1 -type d -mmin +1440 ! -name "$hash" -exec rm -rf {} +
        touch "$to/.complete"
    fi
    exec 8>&-
fi
[ $# -gt 0 ] || { echo "$to"; exit 0; }

LD_LIBRARY_PATH="$to/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
CHRONAXIE_NVRTC="$to/nvrtc" CHRONAXIE_CACHE_DIR="$to/cache" CHRONAXIE_EMULATED_CXX="$cxx" CHRONAXIE_PACK=
# A real libcufile or libcusolver knows a real libcuda only.
CHRONAXIE_CUFILE="${CHRONAXIE_CUFILE-0}"
CHRONAXIE_CUSOLVER="${CHRONAXIE_CUSOLVER-$to/cusolver}"
export LD_LIBRARY_PATH CHRONAXIE_CUFILE CHRONAXIE_CUSOLVER CHRONAXIE_NVRTC CHRONAXIE_CACHE_DIR CHRONAXIE_EMULATED_CXX CHRONAXIE_PACK
cd "$caller"
exec "$@"
