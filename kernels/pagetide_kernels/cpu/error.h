// Entry points return null when all went well, else what was wrong: a string that lives until the same
// thread's next error.
#pragma once

#include <cstdarg>
#include <cstdio>

namespace pagetide {

__attribute__((format(printf, 1, 2))) inline const char* error(const char* format, ...) {
  thread_local char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

}  // namespace pagetide
