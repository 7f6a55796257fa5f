# CMake toolchain: zig's clang for the target in the environment's PLP_ZIG_TARGET (aarch64-macos.13.0,
# x86_64-linux-musl, ...), through the wrappers in zig/: CMake wants one program per tool.
set(target $ENV{PLP_ZIG_TARGET})
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "${target}")
if(target MATCHES "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
set(CMAKE_C_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig/cc)
set(CMAKE_AR ${CMAKE_CURRENT_LIST_DIR}/zig/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${CMAKE_CURRENT_LIST_DIR}/zig/ranlib CACHE FILEPATH "")
