#include <redco/engine.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  try {
    redco::Engine engine;
    if (args.size() == 2 && args[0] == "-e")
      engine.run_string(args[1]);
    else
      engine.run_file(args.at(0), {args.begin() + 1, args.end()});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "redco-lua: %s\n", error.what());
    return 1;
  }
}
