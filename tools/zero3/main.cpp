#include "command_line.h"

int main(int argc, char** argv) {
  return zero3::program::run_program({argv + 1, argv + argc});
}
