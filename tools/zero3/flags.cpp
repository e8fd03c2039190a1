#include "flags.h"

#include <CLI/CLI.hpp>

#include <zero3/error.h>
#include <zero3/trainer/nearest.h>

namespace zero3::program {

CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& help) {
  return parent.add_subcommand(name, help);
}

void begin_group(CLI::App& app, const std::string& title) {
  app.option_defaults()->group(title);
}

void add_value(CLI::App& app, const Flag& flag, const std::string& default_text,
               std::function<void(const std::string&)> parse) {
  CLI::Option* option = app.add_option_function<std::string>(
      flag.name,
      [name = flag.name, parse = std::move(parse)](const std::string& text) {
        try {
          parse(text);
        } catch (const UsageError& error) {
          throw UsageError(concat(name, ": ", error.what()));
        }
      },
      flag.help);
  option->type_name(flag.value)->default_str(default_text);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_text(CLI::App& app, const Flag& flag, std::string& target) {
  add_value(app, flag, target, [&target](const std::string& text) {
    ZERO3_CHECK(!text.empty(), "a value is needed");
    target = text;
  });
}

void add_switch(CLI::App& app, const Flag& flag, bool& target) {
  app.add_flag(flag.name, target, flag.help);
}

void fail_choice(const std::string& text, const std::vector<std::string>& names) {
  throw UsageError(fmt::format("'{}' is not one of {}; the nearest is {}", text,
                               fmt::join(names, ", "), trainer::nearest(text, names)));
}

}  // namespace zero3::program
