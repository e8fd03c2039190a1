#include "npy_header.h"

#include <charconv>
#include <string_view>

#include <zero3/error.h>

namespace zero3::trainer {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The few Python literals that a header is made of.
class LiteralReader {
 public:
  LiteralReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  [[nodiscard]] bool accept(char wanted) {
    skip_space();
    if (text_.empty() || text_.front() != wanted) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(concat("'", wanted, "' expected"));
  }
  [[nodiscard]] std::string string() {
    skip_space();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) {
      fail("a string expected (arrays of records are not supported)");
    }
    const std::size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) fail("a string without an end");
    std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }
  [[nodiscard]] bool boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(0, word.size()) == word) {
        text_.remove_prefix(word.size());
        return word == "True";
      }
    }
    fail("True or False expected");
  }
  [[nodiscard]] std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      values.push_back(integer());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }
  void expect_end() {
    skip_space();
    if (!text_.empty()) fail("text after the dictionary");
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError(concat("'", path_, "': not a NumPy header: ", what,
                            "; write the file with numpy.save(path, tokens)"));
  }

 private:
  void skip_space() {
    const std::size_t begin = text_.find_first_not_of(" \n");
    text_.remove_prefix(begin == std::string_view::npos ? text_.size() : begin);
  }
  [[nodiscard]] std::int64_t integer() {
    skip_space();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) fail("a shape of whole numbers expected");
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return value;
  }

  std::string_view text_;
  const std::string& path_;
};

NpyHeader parse_dictionary(std::string_view text, const std::string& path) {
  LiteralReader reader(text, path);
  NpyHeader header;
  bool has_descr = false, has_order = false, has_shape = false;
  const auto once = [&reader](bool& seen, const std::string& key) {
    if (seen) reader.fail(concat("'", key, "' twice"));
    seen = true;
  };
  reader.expect('{');
  while (!reader.accept('}')) {
    const std::string key = reader.string();
    reader.expect(':');
    if (key == "descr") {
      once(has_descr, key);
      header.descr = reader.string();
    } else if (key == "fortran_order") {
      once(has_order, key);
      header.fortran_order = reader.boolean();
    } else if (key == "shape") {
      once(has_shape, key);
      header.shape = reader.tuple();
    } else {
      reader.fail(concat("unknown key '", key, "'"));
    }
    if (!reader.accept(',')) {
      reader.expect('}');
      break;
    }
  }
  reader.expect_end();
  if (!has_descr || !has_order || !has_shape) {
    reader.fail("descr, fortran_order and shape are needed");
  }
  return header;
}

}  // namespace

bool has_npy_magic(std::span<const std::byte> file) {
  return as_text(file).substr(0, kMagic.size()) == kMagic;
}

NpyHeader parse_npy_header(std::span<const std::byte> file, const std::string& path) {
  ZERO3_CHECK(
      has_npy_magic(file), "'", path,
      "': named .npy, but does not start as a NumPy file; write it with numpy.save(path, tokens)");
  constexpr std::size_t kVersionEnd = 8;
  ZERO3_CHECK(file.size() >= kVersionEnd + 4, "'", path,
              "': truncated: the NumPy header is cut short after ", file.size(), " bytes");
  const int major = std::to_integer<int>(file[6]);
  const int minor = std::to_integer<int>(file[7]);
  ZERO3_CHECK(major >= 1 && major <= 3 && minor == 0, "'", path, "': NumPy format version ", major,
              ".", minor, " is unknown; versions 1.0, 2.0 and 3.0 can be read");
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  std::size_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;) {
    length = length << 8 | std::to_integer<std::size_t>(file[kVersionEnd + i]);
  }
  const std::size_t begin = kVersionEnd + length_bytes;
  ZERO3_CHECK(length <= file.size() - begin, "'", path, "': truncated: the NumPy header has ",
              length, " bytes, the file ends after ", file.size() - begin, " of them");
  NpyHeader header = parse_dictionary(as_text(file.subspan(begin, length)), path);
  header.data_offset = static_cast<std::int64_t>(begin + length);
  return header;
}

}  // namespace zero3::trainer
