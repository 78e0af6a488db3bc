#include "pentatron/base/end.h"
#include "pentatron/cli/commands.h"

int main(int argc, char** argv) {
  pentatron::end_without_libraries();
  return pentatron::cli::run(argc, argv);
}
