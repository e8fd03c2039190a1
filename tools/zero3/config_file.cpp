#include "config_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include <zero3/error.h>
#include <zero3/trainer/nearest.h>
#include "command_line.h"

namespace zero3::program {
namespace {

using Json = nlohmann::ordered_json;

Json read_object(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError(concat("--config: cannot read '", path, "': ", std::strerror(errno)));
  try {
    Json object = Json::parse(file);
    ZERO3_CHECK(object.is_object(), "--config: '", path,
                "' holds no JSON object; write {\"steps\": 300, …}");
    return object;
  } catch (const Json::exception& error) {
    throw UsageError(concat("--config: '", path, "' is not JSON: ", error.what()));
  }
}

std::string text_of(const Json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  throw UsageError(concat(where, " is ", value.dump(), "; give a number or a string"));
}

std::vector<std::string> flags_of(const CLI::App& command, const std::string& path) {
  std::vector<std::string> known = flag_names(command);
  for (std::string& name : known) name.erase(0, 2);
  std::vector<std::string> flags;
  const Json object = read_object(path);
  for (const auto& [key, value] : object.items()) {
    const std::string where = concat("--config: '", path, "': key '", key, "'");
    ZERO3_CHECK(std::find(known.begin(), known.end(), key) != known.end(), where,
                " is unknown; the nearest is '", trainer::nearest(key, known), "'");
    ZERO3_CHECK(key != "config", where, ": a config file cannot name another");
    if (value.is_boolean()) {
      if (value.get<bool>()) flags.push_back(concat("--", key));
      continue;
    }
    std::string text;
    if (value.is_array()) {
      for (const Json& part : value) {
        if (!text.empty()) text += ',';
        text += text_of(part, where);
      }
    } else {
      text = text_of(value, where);
    }
    flags.push_back(concat("--", key, "=", text));
  }
  return flags;
}

}  // namespace

std::vector<std::string> with_config_file(const CLI::App& command,
                                          std::vector<std::string> arguments) {
  const std::string flag = "--config";
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string path;
    if (arguments[i] == flag && i + 1 < arguments.size()) path = arguments[i + 1];
    if (arguments[i].starts_with(flag + "=")) path = arguments[i].substr(flag.size() + 1);
    if (path.empty()) continue;
    std::vector<std::string> all = flags_of(command, path);
    all.insert(all.end(), std::make_move_iterator(arguments.begin()),
               std::make_move_iterator(arguments.end()));
    return all;
  }
  return arguments;
}

}  // namespace zero3::program
