// The main function of every test program.
#include "pentatron/base/end.h"
#include "tests/support/exit_status.h"

int main(int argc, char** argv) {
  pentatron::end_without_libraries();
  testing::InitGoogleMock(&argc, argv);
  return pentatron::test::run_all_tests();
}
