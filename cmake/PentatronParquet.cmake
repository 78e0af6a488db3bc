# Apache Arrow's C++ libraries from PyPI's pyarrow wheel, for the program pentatron-parquet. Looked for in PYARROW_ROOT (the
# folder pyarrow of a wheel) and in what scripts/parquet.sh installs. Defines the target Pentatron::parquet if they are there.
#
#   PENTATRON_PARQUET  AUTO: built if they are found; ON: an error if not; OFF: not built.
set(PENTATRON_PARQUET AUTO CACHE STRING "build pentatron-parquet, which reads Parquet files: AUTO, ON or OFF")
set_property(CACHE PENTATRON_PARQUET PROPERTY STRINGS AUTO ON OFF)

set(PENTATRON_HAS_PARQUET OFF)
if(NOT PENTATRON_PARQUET STREQUAL "OFF")
  file(GLOB _roots "${PYARROW_ROOT}" "$ENV{PYARROW_ROOT}" "${PROJECT_SOURCE_DIR}/.deps/parquet/lib/python3*/site-packages/pyarrow")
  foreach(_root IN LISTS _roots)
    # Not by pyarrow's own names libarrow.so: the wheel has them with their version only.
    file(GLOB _arrow "${_root}/libarrow.so.[0-9]*")
    file(GLOB _parquet "${_root}/libparquet.so.[0-9]*")
    if(_arrow AND _parquet AND EXISTS "${_root}/include/parquet/arrow/reader.h")
      list(GET _arrow 0 _arrow)
      list(GET _parquet 0 _parquet)
      add_library(Pentatron::parquet INTERFACE IMPORTED)
      target_include_directories(Pentatron::parquet SYSTEM INTERFACE "${_root}/include")
      target_link_libraries(Pentatron::parquet INTERFACE "${_parquet}" "${_arrow}")
      target_link_options(Pentatron::parquet INTERFACE "LINKER:-rpath-link,${_root}")
      set(PENTATRON_HAS_PARQUET ON)
      break()
    endif()
  endforeach()
endif()
if(PENTATRON_PARQUET STREQUAL "ON" AND NOT PENTATRON_HAS_PARQUET)
  message(FATAL_ERROR "PENTATRON_PARQUET=ON needs the pyarrow wheel\n  try: scripts/parquet.sh, or PYARROW_ROOT=/path/to/pyarrow")
endif()
