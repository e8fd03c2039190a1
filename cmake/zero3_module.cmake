# zero3_flags(<target>): the warnings and code generation that every target of the tree is built with.
# -ffp-contract=off keeps a*b+c as two roundings, so CPU and GPU optimizer math agree bit for bit.
# Trapping and errno semantics are given up because they keep loops with selects and sqrt from being vectorised;
# neither changes a result.
function(zero3_flags target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wconversion -Wshadow -Werror
    -march=${ZERO3_ARCH} -ffp-contract=off -fno-math-errno -fno-trapping-math)
endfunction()

# zero3_module(<name> SOURCES ... DEPENDS ... PRIVATE_DEPENDS ...): one folder, one library, one public include
# folder. A module sees its own headers and those of DEPENDS and nothing else, so an include against the layer
# order does not compile.
function(zero3_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  file(GLOB headers CONFIGURE_DEPENDS include/zero3/*.h)
  add_library(zero3_${name} ${ARG_SOURCES})
  add_library(zero3::${name} ALIAS zero3_${name})
  target_sources(zero3_${name} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
  target_include_directories(zero3_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_features(zero3_${name} PUBLIC cxx_std_20)
  zero3_flags(zero3_${name})
  target_link_libraries(zero3_${name} PUBLIC ${ARG_DEPENDS})
  foreach(dependency ${ARG_PRIVATE_DEPENDS})
    target_link_libraries(zero3_${name} PRIVATE ${dependency})
  endforeach()
  set_target_properties(zero3_${name} PROPERTIES
    EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON VERIFY_INTERFACE_HEADER_SETS ON)
  set_property(GLOBAL APPEND PROPERTY zero3_modules zero3_${name})
endfunction()
