#include "pentatron/cli/commands.h"

int main(int argc, char** argv) {
  return pentatron::cli::run(argc, argv);
}
