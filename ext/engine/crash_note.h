// What a process leaves behind when llama.cpp ends it: a file with the message, for the next process to show.
#pragma once

#include <string>

namespace ipyllama::crash_note {

// Where write() puts its file, UTF-8; "" for nowhere. Nothing is created before there is something to write.
void set_file(const std::string &path);

// Lines of "name: value" that go into the file before the message: who this is, what is running.
void set_facts(const std::string &facts);

// Writes the file: facts, time, process, llama.cpp's last error lines, `message`. An earlier file stays as it is.
void write(const char *message) noexcept;

} // namespace ipyllama::crash_note
