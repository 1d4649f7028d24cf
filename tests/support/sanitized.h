// Whether this program is built with a sanitizer.
#pragma once

// Sanitizers bring a malloc of their own: what a process takes says nothing about its objects.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif
