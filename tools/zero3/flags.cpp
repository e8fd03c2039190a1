#include "flags.h"

#include <zero3/error.h>
#include "nearest.h"

namespace zero3::program {

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

void fail_choice(const std::string& text, const std::vector<std::string>& names) {
  throw UsageError(fmt::format("'{}' is not one of {}; the nearest is {}", text,
                               fmt::join(names, ", "), nearest(text, names)));
}

}  // namespace zero3::program
