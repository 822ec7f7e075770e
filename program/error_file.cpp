// Writes the error file that torchrun reads.

#include "error_file.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <ctime>
#include <fstream>

namespace redco {

void write_error_file(const std::string& message, const std::string& traceback) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  // The format of torch.distributed.elastic's error handler. torchrun shows only py_callstack.
  std::string callstack = traceback.empty() ? message : message + "\n" + traceback;
  std::string now = std::to_string(std::time(nullptr));
  nlohmann::ordered_json report;
  report["message"]["message"] = message;
  report["message"]["extraInfo"] = {{"py_callstack", callstack}, {"timestamp", now}};
  std::ofstream(path) << report.dump(-1, ' ', false,
                                     nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace redco
