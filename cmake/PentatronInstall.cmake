# cmake --install, find_package(pentatron) and cpack. What is installed: the program, one static library a module with its
# headers, and a package file that finds LibTorch the way this build did.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pentatron)

foreach(target IN LISTS PENTATRON_MODULES)
  install(TARGETS ${target} EXPORT pentatron-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
install(EXPORT pentatron-targets NAMESPACE pentatron:: DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/pentatron DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(TARGET pentatron)
  # torch is found through the directories that the link line names; CMake keeps them beside the install prefix. A bundle
  # (scripts/bundle.sh) keeps only ../lib.
  foreach(program IN ITEMS pentatron pentatron-torch pentatron-torch-cuda pentatron-parquet)
    if(TARGET ${program})
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib" INSTALL_RPATH_USE_LINK_PATH ON)
      install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
    endif()
  endforeach()
  install(FILES $<TARGET_FILE_DIR:pentatron-torch>/share/pentatron/commands.json
          DESTINATION ${CMAKE_INSTALL_BINDIR}/../share/pentatron COMPONENT programs)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/tasks ${PROJECT_SOURCE_DIR}/corpus DESTINATION ${CMAKE_INSTALL_BINDIR}/../share/pentatron
          COMPONENT programs)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/pentatron-config.cmake.in
                              ${PROJECT_BINARY_DIR}/pentatron-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pentatron-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pentatron-config.cmake ${PROJECT_BINARY_DIR}/pentatron-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_VENDOR "the pentatron authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
include(CPack)
