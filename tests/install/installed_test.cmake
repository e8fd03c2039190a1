# Installs the built tree, moves the prefix, and builds and runs the embedding example against it with every compiler of
# COMPILERS.
#   cmake -DBUILD=… -DSOURCE=… -DWORK=… -DCOMPILERS=g++;clang++ -P installed_test.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "'${command}' ended with ${status}:\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

find_program(MPIRUN mpirun)
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/moved)
foreach(compiler ${COMPILERS})
  run(${CMAKE_COMMAND} -S ${SOURCE}/tests/install -B ${WORK}/${compiler} -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/moved
      -DCMAKE_CXX_COMPILER=${compiler} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror ${FLAGS}")
  run(${CMAKE_COMMAND} --build ${WORK}/${compiler})
  run(${WORK}/${compiler}/embedding_example)
  if(MPIRUN)
    run(${CMAKE_COMMAND} -E env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ${MPIRUN} --oversubscribe -n 2
        ${WORK}/${compiler}/embedding_example)
  endif()
endforeach()
run(${WORK}/moved/bin/zero3 --version)
