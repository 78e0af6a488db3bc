# The mpi backend of comm. Sets PENTATRON_HAS_MPI.
set(PENTATRON_MPI AUTO CACHE STRING "build the mpi backend: ON, OFF, or AUTO for where MPI is")
set_property(CACHE PENTATRON_MPI PROPERTY STRINGS AUTO ON OFF)
set(PENTATRON_HAS_MPI OFF)
if(PENTATRON_MPI)
  set(MPI_CXX_SKIP_MPICXX ON) # MPI's own C++ bindings, long gone from the standard
  if(PENTATRON_MPI STREQUAL "AUTO")
    find_package(MPI QUIET COMPONENTS CXX)
  else()
    find_package(MPI REQUIRED COMPONENTS CXX)
  endif()
  set(PENTATRON_HAS_MPI ${MPI_CXX_FOUND})
endif()
