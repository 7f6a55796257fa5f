# CMake toolchain: Debian's aarch64 cross gcc, programs run by qemu (PLP_QEMU_CPU: max, cortex-a76, ...).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(PLP_QEMU_CPU max CACHE STRING "the CPU that qemu shows")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -cpu ${PLP_QEMU_CPU} -L /usr/aarch64-linux-gnu)
