// The main function of every test program.
#include "tests/support/exit_status.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  return pentatron::test::run_all_tests();
}
