# SPDX-License-Identifier: Apache-2.0 OR MIT
# find_package(memlift) gives the target memlift::memlift.
get_filename_component(_memlift_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET memlift::memlift)
  add_library(memlift::memlift SHARED IMPORTED)
  set_target_properties(memlift::memlift PROPERTIES
    IMPORTED_LOCATION "${_memlift_prefix}/lib/libmemlift.so.@MAJOR@"
    IMPORTED_SONAME "libmemlift.so.@MAJOR@"
    INTERFACE_INCLUDE_DIRECTORIES "${_memlift_prefix}/include/memlift")
endif()
unset(_memlift_prefix)
