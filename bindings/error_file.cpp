#include "error_file.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <ctime>
#include <fstream>

namespace redco {

void write_error_file(const std::string& message, const std::string& traceback) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  // As the error handler of torch.distributed.elastic writes it.
  nlohmann::ordered_json report = {{"message",
                                    {{"message", message},
                                     {"extraInfo",
                                      {{"py_callstack", traceback.empty() ? message : traceback},
                                       {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  std::ofstream(path) << report.dump(-1, ' ', false,
                                     nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace redco
