# A healthy instance of Sidekiq and of the cache of Rails (6.1), each made by the library itself.
#
#   ruby specimens.rb PORT

require "sidekiq"
require "sidekiq/api"

Sidekiq.configure_client { |config| config.redis = { url: "redis://127.0.0.1:#{ARGV[0]}/0" } }

class Charge
  include Sidekiq::Worker
end

Charge.perform_async(1)
Charge.set(queue: "critical").perform_async(2)
Charge.perform_in(3600, 3)

require "logger"
require "active_support"
require "active_support/core_ext"
require "active_support/cache/redis_cache_store"

cache = ActiveSupport::Cache::RedisCacheStore.new(url: "redis://127.0.0.1:#{ARGV[0]}/0")
cache.write("views/old/17", "cached", expires_in: 3600)
cache.write("views/old/18", { "price" => 7 }, expires_in: 3600)
cache.write("views/old/19", "long " * 1000, expires_in: 3600)
