# Builds a Rust static library and copies it to OUTPUT. Run by `cmake -P`; says what to do when it fails.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${TARGET_DIR}
          ${CARGO} build --release --locked --manifest-path ${MANIFEST}
  RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  execute_process(COMMAND ${CARGO} --version OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
  message(FATAL_ERROR "`${CARGO} build` of ${MANIFEST} failed (${version}). It needs Rust 1.85 or newer and, the first "
                      "time, network access to the crates registry; its own message stands above.")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E copy ${TARGET_DIR}/release/${LIBRARY} ${OUTPUT} COMMAND_ERROR_IS_FATAL ANY)
