# The jobs that sidekiq_worker.rb runs. They note what they were given in the list "ran:<queue>".

class Charge
  include Sidekiq::Worker

  def perform(order, currency)
    Sidekiq.redis { |redis| redis.rpush("ran:#{ARGV[1]}", "#{order} #{currency}") }
  end
end

# Fails, and must not be tried again.
class Once
  include Sidekiq::Worker
  sidekiq_options retry: false

  def perform
    Sidekiq.redis { |redis| redis.rpush("ran:#{ARGV[1]}", "once") }
    raise "no luck"
  end
end

# Fails, and is tried again.
class Again
  include Sidekiq::Worker

  def perform
    Sidekiq.redis { |redis| redis.rpush("ran:#{ARGV[1]}", "again") }
    raise "no luck"
  end
end

# Says that it has begun, and does not end.
class Hang
  include Sidekiq::Worker

  def perform
    Sidekiq.redis { |redis| redis.rpush("ran:#{ARGV[1]}", "begun") }
    sleep
  end
end

# Works for a moment, so that others get jobs too, and notes its id. Of a process that is to be killed the first ten end, and the others are in its hands.
class Work
  include Sidekiq::Worker
  HOLD = ARGV[4] == "hold"
  COUNT = Queue.new

  def perform
    COUNT << 1
    sleep if HOLD && COUNT.size > 10
    sleep 0.2
    Sidekiq.redis { |redis| redis.rpush("ran:#{ARGV[1]}", jid) }
  end
end
