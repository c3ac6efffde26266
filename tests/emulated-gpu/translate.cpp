// The translation of a source: see translate.h. It works on characters and balanced brackets, not on a syntax tree; what it
// does not understand it leaves as it is, and the host's compiler then refuses it.
#include "translate.h"

#include <cctype>
#include <map>
#include <stdexcept>
#include <vector>

namespace emu {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)); }

std::string trim(const std::string& s) {
  size_t a = 0, b = s.size();
  while (a < b && is_space(s[a])) a++;
  while (b > a && is_space(s[b - 1])) b--;
  return s.substr(a, b - a);
}

// Behind a comment or a literal that starts at `at`, or `at` itself if none does.
size_t skip_opaque(const std::string& s, size_t at) {
  if (s.compare(at, 2, "//") == 0) {
    size_t end = s.find('\n', at);
    return end == std::string::npos ? s.size() : end;
  }
  if (s.compare(at, 2, "/*") == 0) {
    size_t end = s.find("*/", at + 2);
    return end == std::string::npos ? s.size() : end + 2;
  }
  if (s[at] == '"' || (s[at] == '\'' && !(at && std::isalnum(static_cast<unsigned char>(s[at - 1]))))) {
    size_t i = at + 1;
    while (i < s.size() && s[i] != s[at]) i += s[i] == '\\' ? 2 : 1;
    return i + 1 < s.size() ? i + 1 : s.size();
  }
  return at;
}

size_t skip_space(const std::string& s, size_t at) {
  while (at < s.size()) {
    if (is_space(s[at])) {
      at++;
    } else if (s.compare(at, 2, "//") == 0 || s.compare(at, 2, "/*") == 0) {
      at = skip_opaque(s, at);
    } else {
      break;
    }
  }
  return at;
}

std::string word_at(const std::string& s, size_t at) {
  size_t end = at;
  while (end < s.size() && is_word(s[end])) end++;
  return s.substr(at, end - at);
}

// Behind the bracket that closes the one at `at`.
size_t skip_brackets(const std::string& s, size_t at) {
  int depth = 0;
  for (size_t i = at; i < s.size();) {
    size_t next = skip_opaque(s, i);
    if (next != i) {
      i = next;
      continue;
    }
    if (s[i] == '(' || s[i] == '[' || s[i] == '{') depth++;
    if (s[i] == ')' || s[i] == ']' || s[i] == '}') {
      if (--depth == 0) return i + 1;
    }
    i++;
  }
  throw std::runtime_error("a bracket is not closed: " + s.substr(at, 60));
}

// The parts of a text between separators that lie in no bracket; `angles` counts < and > too.
std::vector<std::string> split(const std::string& s, char separator, bool angles = false) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (size_t i = 0; i < s.size();) {
    size_t next = skip_opaque(s, i);
    if (next != i) {
      parts.back() += s.substr(i, next - i);
      i = next;
      continue;
    }
    char c = s[i++];
    if (c == '(' || c == '[' || c == '{' || (angles && c == '<')) depth++;
    if (c == ')' || c == ']' || c == '}' || (angles && c == '>')) depth--;
    if (c == separator && depth == 0 && !(separator == ':' && (s[i] == ':' || (i > 1 && s[i - 2] == ':'))))
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::string strip_comments(const std::string& s) {
  std::string out;
  for (size_t i = 0; i < s.size();) {
    size_t next = skip_opaque(s, i);
    if (next != i && s[i] == '/') {
      out += ' ';
    } else if (next != i) {
      out += s.substr(i, next - i);
    } else {
      out += s[i];
      next = i + 1;
    }
    i = next;
  }
  return out;
}

// The characters of adjacent string literals.
std::string unquote(const std::string& s) {
  std::string out;
  for (size_t i = 0; i < s.size(); i++) {
    if (s[i] != '"') continue;
    for (i++; i < s.size() && s[i] != '"'; i++) {
      if (s[i] != '\\') {
        out += s[i];
        continue;
      }
      char c = s[++i];
      out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\n' : c;
    }
  }
  return out;
}

class Translator {
 public:
  explicit Translator(const std::string& source) : s(source), macros(defined(source)) {}

  Translation run() {
    for (size_t i = 0; i < s.size();) {
      size_t next = skip_opaque(s, i);
      if (next == i && is_word(s[i]) && !(i && is_word(s[i - 1]))) {
        std::string word = word_at(s, i);
        if (word == "asm" || word == "__asm__" || word == "__asm") {
          next = inline_ptx(i);
        } else if (word == "__shared__") {
          next = shared(i);
        } else if (word == "extern") {
          next = external(i);
        } else if (word == "__global__") {
          kernel(i);
        } else {
          next = i + word.size();
        }
      } else if (next == i && s.compare(i, 10, "(volatile ") == 0) {
        next = volatile_cast(i);
      }
      if (next == i) next = i + 1;
      if (!handled) out.text += s.substr(i, next - i);
      handled = false;
      i = next;
      while (!endings.empty() && i >= endings.back().first) {
        out.text += endings.back().second;
        endings.pop_back();
      }
    }
    return std::move(out);
  }

 private:
  const std::string& s;
  const std::map<std::string, std::string> macros;
  Translation out;
  bool handled = false;
  std::vector<std::pair<size_t, std::string>> endings;
  int count = 0;

  void replace(size_t from, size_t to, std::string text) {
    for (size_t i = from; i < to; i++)
      if (s[i] == '\n') text += '\n';
    out.text += text;
    handled = true;
  }

  // (volatile T*)p: reading through it may be a wait for another thread, which must get its turn.
  size_t volatile_cast(size_t at) {
    size_t end = skip_brackets(s, at);
    std::string type = trim(s.substr(at + 10, end - at - 11));
    if (type.empty() || type.back() != '*' || type.find('(') != std::string::npos) return at;
    type.pop_back();
    replace(at, end, "(emu::VolatilePointer<" + type + ">)");
    return end;
  }

  size_t external(size_t at) {
    size_t i = skip_space(s, at + 6);
    if (word_at(s, i) != "__shared__") return at + 6;
    return shared(i, at);
  }

  // __shared__ T a[n], b; and extern __shared__ T c[];
  size_t shared(size_t at, size_t from = std::string::npos) {
    const bool dynamic = from != std::string::npos;
    if (!dynamic) from = at;
    size_t end = at;
    while (end < s.size() && s[end] != ';') {
      size_t next = skip_opaque(s, end);
      if (next == end) next = s[end] == '(' || s[end] == '[' || s[end] == '{' ? skip_brackets(s, end) : end + 1;
      end = next;
    }
    std::string text = strip_comments(s.substr(at + 10, end - at - 10)), rest, alignment = "1";
    for (size_t i = 0; i < text.size();) {
      std::string word = is_word(text[i]) ? word_at(text, i) : "";
      if (word == "alignas" || word == "__align__") {
        size_t open = text.find('(', i), close = skip_brackets(text, open);
        alignment = text.substr(open + 1, close - open - 2);
        i = close;
      } else if (!word.empty()) {
        rest += word;
        i += word.size();
      } else {
        rest += text[i++];
      }
    }
    std::string types, refs;
    for (const std::string& declarator : split(rest, ',', true)) {
      size_t brackets = declarator.find('[');
      std::string head = trim(declarator.substr(0, brackets));
      std::string tail = brackets == std::string::npos ? "" : declarator.substr(brackets);
      size_t start = head.size();
      while (start > 0 && is_word(head[start - 1])) start--;
      std::string name = head.substr(start), before = head.substr(0, start);
      if (dynamic) {
        std::string type = trim(before);
        replace(from, end + 1, "[[maybe_unused]] " + type + "* const " + name + " = (" + type +
                                   "*)emu::shared_dynamic(" + alignment + ");");
        return end + 1;
      }
      std::string type = "emu_type_of_" + name;
      types += (types.empty() ? "" : ",") + before + type + tail;
      refs += " static int emu_slot_of_" + name + " = -1; [[maybe_unused]] auto& " + name + " = *(" + type +
              "*)emu::shared_static(&emu_slot_of_" + name + ", sizeof(" + type + "), emu::aligned<" + type + ">(" +
              alignment + "));";
    }
    replace(from, end + 1, "typedef " + types + ";" + refs);
    return end + 1;
  }

  // Behind the body of a kernel comes its entry in the table.
  void kernel(size_t at) {
    size_t before = at;
    while (before > 0 && s[before - 1] != ';' && s[before - 1] != '}') before--;
    const bool extern_c = s.substr(before, at - before).find("extern \"C\"") != std::string::npos;
    std::string bounds, name;
    size_t i = at + 10;
    while (i < s.size()) {
      i = skip_space(s, i);
      std::string word = i < s.size() && is_word(s[i]) ? word_at(s, i) : "";
      if (word.empty()) {
        if (s[i] == ';' || s[i] == '{') return;
        i++;
        continue;
      }
      size_t after = skip_space(s, i + word.size());
      if (word == "__launch_bounds__") {
        size_t close = skip_brackets(s, after);
        bounds = ", " + s.substr(after + 1, close - after - 2);
        i = close;
      } else if (after < s.size() && s[after] == '(') {
        name = word;
        i = skip_space(s, skip_brackets(s, after));
        break;
      } else {
        i = after;
      }
    }
    if (name.empty() || i >= s.size() || s[i] != '{') return;
    endings.emplace_back(skip_brackets(s, i), " EMU_KERNEL(" + name + ", " + (extern_c ? "1" : "0") + bounds + ")");
  }

  struct Operand {
    std::string symbol, constraint, expression;
  };

  static std::vector<Operand> operands(const std::string& text) {
    std::vector<Operand> list;
    for (const std::string& part : split(text, ',')) {
      std::string p = trim(part);
      if (p.empty()) continue;
      Operand o;
      if (p[0] == '[') {
        size_t close = p.find(']');
        o.symbol = trim(p.substr(1, close - 1));
        p = trim(p.substr(close + 1));
      }
      size_t open = p.find('(');
      if (open == std::string::npos) throw std::runtime_error("an operand of inline PTX without an expression: " + p);
      o.constraint = unquote(p.substr(0, open));
      o.expression = p.substr(open);
      list.push_back(o);
    }
    return list;
  }

  static std::string type_of(const std::string& constraint) {
    switch (constraint.back()) {
      case 'r': return "unsigned";
      case 'l': return "unsigned long long";
      case 'h': return "unsigned short";
      case 'f': return "float";
      case 'd': return "double";
      default: throw std::runtime_error("the constraint \"" + constraint + "\" of inline PTX is not known");
    }
  }

  // Macros without parameters that the source defines itself: lists of operands are long.
  std::string expand(const std::string& text, int depth = 0) {
    if (depth > 8) throw std::runtime_error("macros in inline PTX that name each other");
    std::string whole;
    for (size_t i = 0; i < text.size();) {
      size_t next = skip_opaque(text, i);
      if (next == i && is_word(text[i])) {
        const std::string word = word_at(text, i);
        const auto macro = macros.find(word);
        whole += macro == macros.end() ? word : expand(macro->second, depth + 1);
        i += word.size();
        continue;
      }
      if (next == i) next++;
      whole += text.substr(i, next - i);
      i = next;
    }
    return whole;
  }
  static std::map<std::string, std::string> defined(const std::string& source) {
    std::map<std::string, std::string> all;
    const std::string start = "#define ";
    for (size_t at = source.find(start); at != std::string::npos; at = source.find(start, at + 1)) {
      const std::string name = word_at(source, at + start.size());
      size_t i = at + start.size() + name.size();
      if (i >= source.size() || source[i] != ' ') continue;
      std::string value;
      for (; i < source.size() && source[i] != '\n'; i++) {
        const bool goes_on = source.compare(i, 2, "\\\n") == 0;
        value += goes_on ? ' ' : source[i];
        i += goes_on;
      }
      all[name] = value;
    }
    return all;
  }

  size_t inline_ptx(size_t at) {
    size_t i = skip_space(s, at + word_at(s, at).size());
    for (std::string word = word_at(s, i); word == "volatile" || word == "__volatile__"; word = word_at(s, i))
      i = skip_space(s, i + word.size());
    if (s[i] != '(') return at + 3;
    size_t close = skip_brackets(s, i), end = skip_space(s, close);
    if (end >= s.size() || s[end] != ';') throw std::runtime_error("inline PTX that is no statement");
    // "::" is two empty separators.
    std::string inside = expand(strip_comments(s.substr(i + 1, close - i - 2))), spaced;
    for (size_t k = 0; k < inside.size();) {
      size_t next = skip_opaque(inside, k);
      if (next != k) {
        spaced += inside.substr(k, next - k);
        k = next;
      } else if (inside.compare(k, 2, "::") == 0 && colons_separate(inside, k)) {
        spaced += ": : ";
        k += 2;
      } else {
        spaced += inside[k++];
      }
    }
    std::vector<std::string> parts = split(spaced, ':');
    parts.resize(4);
    std::string code = "{ ", give;
    std::vector<Operand> all;
    std::vector<std::string> values;
    const std::string id = std::to_string(count++);
    for (int part = 1; part <= 2; part++) {
      for (Operand& o : operands(parts[part])) {
        std::string v = "emu_" + std::to_string(all.size());
        if (o.constraint == "n" || o.constraint == "i") {
          v = o.expression;
        } else {
          std::string type = type_of(o.constraint);
          code += "[[maybe_unused]] " + type + " " + v;
          if (part == 2 || o.constraint[0] == '+') code += " = emu::load<" + type + ">(" + o.expression + ")";
          code += "; ";
          if (part == 1) give += " emu::store(" + o.expression + ", " + v + ");";
        }
        values.push_back(v);
        all.push_back(o);
      }
    }
    // Registers first, so that no jump passes a declaration with a value.
    code += statements(unquote(parts[0]), all, values, id);
    replace(at, end + 1, code + give + " }");
    return end + 1;
  }

  // Whether a "::" within an asm's brackets separates its parts: it stands in no bracket, and next to a literal or the end.
  static bool colons_separate(const std::string& text, size_t at) {
    int depth = 0;
    for (size_t i = 0; i < at;) {
      size_t next = skip_opaque(text, i);
      if (next == i) {
        if (text[i] == '(' || text[i] == '[') depth++;
        if (text[i] == ')' || text[i] == ']') depth--;
        next = i + 1;
      }
      i = next;
    }
    return depth == 0;
  }

  std::string statements(const std::string& ptx, const std::vector<Operand>& all, const std::vector<std::string>& values,
                         const std::string& id) {
    std::string code, text;
    for (size_t i = 0; i < ptx.size(); i++) {
      // Comments of PTX.
      if (ptx.compare(i, 2, "//") == 0) {
        while (i < ptx.size() && ptx[i] != '\n') i++;
      }
      if (i < ptx.size()) text += is_space(ptx[i]) ? ' ' : ptx[i];
    }
    size_t i = 0;
    while (true) {
      while (i < text.size() && (text[i] == ' ' || text[i] == ';')) i++;
      if (i >= text.size()) break;
      if (text[i] == '{' || text[i] == '}') {
        code += text[i++];
        code += ' ';
        continue;
      }
      size_t end = i;
      int depth = 0;
      while (end < text.size() && (text[end] != ';' || depth)) {
        if (text[end] == '{') depth++;
        if (text[end] == '}') depth--;
        end++;
      }
      code += statement(trim(text.substr(i, end - i)), all, values, id);
      i = end;
    }
    return code;
  }

  std::string statement(std::string t, const std::vector<Operand>& all, const std::vector<std::string>& values,
                        const std::string& id) {
    std::string code;
    // LABEL: instruction
    size_t w = 0;
    if (t[0] == '$') w = 1;
    while (w < t.size() && is_word(t[w])) w++;
    size_t colon = w;
    while (colon < t.size() && t[colon] == ' ') colon++;
    if (w && colon < t.size() && t[colon] == ':' && t.compare(colon, 2, "::") != 0) {
      code += "emu_label_" + id + "_" + label(t.substr(0, w)) + ": ; ";
      t = trim(t.substr(colon + 1));
      if (t.empty()) return code;
    }
    if (t.compare(0, 4, ".reg") == 0) {
      size_t space = t.find(' ', 5);
      std::string kind = trim(t.substr(4, space - 4)), type;
      if (kind == ".pred") type = "bool";
      else if (kind == ".f32") type = "float";
      else if (kind == ".f64") type = "double";
      else if (kind.size() >= 3 && kind.substr(kind.size() - 2) == "64") type = "unsigned long long";
      else if (kind.size() >= 3 && kind.substr(kind.size() - 2) == "32") type = "unsigned";
      else if (kind.size() >= 3 && kind.substr(kind.size() - 2) == "16") type = "unsigned short";
      else throw std::runtime_error("a register of type " + kind + " in inline PTX");
      code += "[[maybe_unused]] " + type + " ";
      bool first = true;
      for (const std::string& name : split(t.substr(space), ',')) {
        code += (first ? "" : ", ") + std::string("emu_r_") + register_name(trim(name));
        first = false;
      }
      return code + "; ";
    }
    std::string close;
    if (t[0] == '@') {
      size_t space = t.find(' ');
      std::string p = t.substr(1, space - 1);
      bool negated = p[0] == '!';
      code += std::string("if (") + (negated ? "!" : "") + "(" + operand(p.substr(negated), all, values) + ")) { ";
      close = "} ";
      t = trim(t.substr(space));
    }
    size_t space = t.find(' ');
    std::string opcode = t.substr(0, space), rest = space == std::string::npos ? "" : trim(t.substr(space));
    if (opcode == "bra" || opcode == "bra.uni")
      return code + "goto emu_label_" + id + "_" + label(rest) + "; " + close;
    std::string name;
    for (size_t k = 0; k < opcode.size(); k++) {
      if (is_word(opcode[k])) name += opcode[k];
      else if (opcode[k] == '.') name += '_';
      else if (opcode[k] == ':' && opcode[k + 1] == ':') name += '_', k++;
      else throw std::runtime_error("an instruction that cannot be read: " + t);
    }
    out.names.insert(name);
    std::vector<std::string> args;
    for (const std::string& part : split(rest, ',')) flatten(trim(part), all, values, args);
    code += "emu_ptx::" + name + "(";
    for (size_t k = 0; k < args.size(); k++) code += (k ? ", " : "") + args[k];
    return code + "); " + close;
  }

  static std::string label(const std::string& s) {
    std::string out;
    for (char c : s)
      if (is_word(c)) out += c;
    return out;
  }
  static std::string register_name(std::string s) {
    if (!s.empty() && s[0] == '%') s = s.substr(1);
    for (char c : s)
      if (!is_word(c)) throw std::runtime_error("a register called `" + s + "` in inline PTX");
    return s;
  }

  // [a], {a, b} and a|b are the operands in them.
  void flatten(const std::string& t, const std::vector<Operand>& all, const std::vector<std::string>& values,
               std::vector<std::string>& args) {
    if (t.empty()) return;
    if (t.front() == '{' || t.front() == '[') {
      for (const std::string& part : split(t.substr(1, t.size() - 2), ',')) flatten(trim(part), all, values, args);
    } else if (t.find('|') != std::string::npos) {
      for (const std::string& part : split(t, '|')) flatten(trim(part), all, values, args);
    } else if (size_t plus = t.find('+'); plus != std::string::npos) {
      args.push_back("(" + operand(trim(t.substr(0, plus)), all, values) + " + " +
                     operand(trim(t.substr(plus + 1)), all, values) + ")");
    } else {
      args.push_back(operand(t, all, values));
    }
  }

  std::string operand(const std::string& t, const std::vector<Operand>& all, const std::vector<std::string>& values) {
    if (t == "_") return "emu_ptx::sink";
    if (t[0] == '!') return "!(" + operand(trim(t.substr(1)), all, values) + ")";
    if (std::isdigit(static_cast<unsigned char>(t[0])) || t[0] == '-') return constant(t);
    if (t[0] != '%') return "emu_r_" + register_name(t);
    if (t[1] == '%') {
      std::string name = t.substr(2);
      for (char& c : name)
        if (!is_word(c)) c = '_';
      out.names.insert("special_" + name);
      return "emu_ptx::special_" + name + "()";
    }
    if (std::isdigit(static_cast<unsigned char>(t[1]))) {
      size_t n = std::stoul(t.substr(1));
      if (n >= values.size()) throw std::runtime_error("inline PTX has no operand " + t);
      return values[n];
    }
    if (t[1] == '[') {
      std::string symbol = t.substr(2, t.size() - 3);
      for (size_t n = 0; n < all.size(); n++)
        if (all[n].symbol == symbol) return values[n];
      throw std::runtime_error("inline PTX has no operand " + t);
    }
    throw std::runtime_error("an operand `" + t + "` of inline PTX that cannot be read");
  }

  // 0f3F800000 is a float by its bits.
  static std::string constant(const std::string& t) {
    if (t.size() == 10 && t[0] == '0' && (t[1] == 'f' || t[1] == 'F')) return "emu::from_bits(0x" + t.substr(2) + "u)";
    if (t.find('.') != std::string::npos && t.compare(0, 2, "0x") != 0) return t + "f";
    return t;
  }
};

}  // namespace

Translation translate(const std::string& source) { return Translator(source).run(); }

}  // namespace emu
