# A healthy instance of Sidekiq, made by Sidekiq itself.
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
