# process_test(<name> <target> <ranks> BACKEND mpi|sockets|machines LABEL label [ENVIRONMENT VAR=value...]
#              [ARGUMENTS argument...])
#   A test program as so many ranks: under mpirun; connected by Unix sockets; or by TCP, as if every two ranks were on a
#   machine of their own.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(mpirun_flags "")
if(PENTATRON_HAS_MPI)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open MPI|OpenRTE")
    set(mpirun_flags --allow-run-as-root --oversubscribe --bind-to none)
  endif()
endif()

function(process_test name target ranks)
  cmake_parse_arguments(arg "" "BACKEND;LABEL" "ENVIRONMENT;ARGUMENTS" ${ARGN})
  set(launcher ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/support/start_ranks.py)
  if(arg_BACKEND STREQUAL mpi)
    set(launcher ${MPIEXEC_EXECUTABLE} ${mpirun_flags} ${MPIEXEC_NUMPROC_FLAG})
    if(PENTATRON_SANITIZE) # MPI keeps what it allocates until the process ends
      list(APPEND arg_ENVIRONMENT ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0)
    endif()
  elseif(arg_BACKEND STREQUAL machines)
    list(APPEND launcher --per-machine 2)
  endif()
  add_test(NAME ${name} COMMAND ${launcher} ${ranks} $<TARGET_FILE:${target}> ${arg_ARGUMENTS})
  set(timeout 600)
  if(arg_LABEL STREQUAL full)
    set(timeout 7200)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${timeout} PROCESSORS 2
                                          ENVIRONMENT "${PENTATRON_TEST_ENVIRONMENT};${arg_ENVIRONMENT}")
endfunction()
