// Stub: libtorch ships without Gloo's headers; only these names are needed, no object is ever made here.
#pragma once
#include <chrono>
#include <string>
#include <vector>
namespace gloo { namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
} }
