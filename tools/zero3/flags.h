#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "quantities.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zero3::program {

/// A flag as the help shows it: its name with dashes, what its value is, what it means.
struct Flag {
  std::string name, value, help;
};

/// A command below `parent`, which owns it.
[[nodiscard]] CLI::App* add_command(CLI::App& parent, const std::string& name,
                                    const std::string& help);

/// The help lists flags that are added from here on under `title`.
void begin_group(CLI::App& app, const std::string& title);

/// Adds a flag whose value goes through `parse`; what that throws is prefixed by flag. Given twice,
/// the last one holds.
void add_value(CLI::App& app, const Flag& flag, const std::string& default_text,
               std::function<void(const std::string&)> parse);

void add_text(CLI::App& app, const Flag& flag, std::string& target);

/// Without a value: given or not.
void add_switch(CLI::App& app, const Flag& flag, bool& target);

/// Whole numbers from `least` on, also with a size's suffix (16K).
template <std::integral T>
void add_count(CLI::App& app, const Flag& flag, T& target, std::int64_t least,
               std::int64_t most = std::numeric_limits<T>::max()) {
  add_value(app, flag, fmt::to_string(target), [&target, least, most](const std::string& text) {
    target = static_cast<T>(parse_count(text, least, most));
  });
}

/// Numbers in [least, below).
template <std::floating_point T>
void add_number(CLI::App& app, const Flag& flag, T& target, double least, double below) {
  add_value(app, flag, fmt::to_string(target), [&target, least, below](const std::string& text) {
    target = static_cast<T>(parse_number_in(text, least, below));
  });
}

template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

/// Throws UsageError that lists the names and says which is nearest.
[[noreturn]] void fail_choice(const std::string& text, const std::vector<std::string>& names);

/// One of several names.
template <class T>
void add_choice(CLI::App& app, Flag flag, T& target, const Choices<T>& choices) {
  std::vector<std::string> names;
  std::string default_text;
  for (const auto& [name, value] : choices) {
    names.push_back(name);
    if (value == target) default_text = name;
  }
  flag.value = fmt::format("{}", fmt::join(names, "|"));
  add_value(app, flag, default_text, [&target, choices, names](const std::string& text) {
    for (const auto& [name, value] : choices) {
      if (name == text) {
        target = value;
        return;
      }
    }
    fail_choice(text, names);
  });
}

}  // namespace zero3::program
