# The job that sidekiq_worker.rb runs. It notes what it was given in the list "ran:<queue>".

class Charge
  include Sidekiq::Worker

  def perform(order, currency)
    Sidekiq.redis { |redis| redis.rpush("ran:#{ARGV[1]}", "#{order} #{currency}") }
  end
end
