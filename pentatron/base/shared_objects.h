/// Large objects that the threads of a process share, found by what they are made from.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace pentatron {

template <class T> class SharedObjects {
 public:
  /// The object of `key`. The first who asks calls `make`, the others wait; it lives as long as
  /// somebody holds it.
  template <class F> std::shared_ptr<const T> get(const std::string& key, const F& make) {
    const std::shared_ptr<Place> place = place_of(key);
    const std::lock_guard lock(place->mutex);
    std::shared_ptr<const T> object = place->object.lock();
    if (object == nullptr) {
      object = make();
      place->object = object;
    }
    return object;
  }

 private:
  struct Place {
    std::mutex mutex;
    std::weak_ptr<const T> object;
  };

  std::shared_ptr<Place> place_of(const std::string& key) {
    const std::lock_guard lock(mutex_);
    std::erase_if(places_, [&](const auto& entry) { // of no use to anybody any more
      if (entry.first == key || entry.second.use_count() > 1) return false;
      const std::lock_guard of_place(entry.second->mutex); // who had it last may have changed it
      return entry.second->object.expired();
    });
    std::shared_ptr<Place>& place = places_[key];
    if (place == nullptr) place = std::make_shared<Place>();
    return place;
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Place>> places_;
};

} // namespace pentatron
